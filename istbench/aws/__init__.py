"""Clusters of AWS machines: created by CloudFormation from a spec, ended, and reached by ssh. `hosts` runs on them.

`spec`, `template`, `cost` and `export` compute without AWS. The others take their clients from `session`, the only
module that imports boto3.
"""
