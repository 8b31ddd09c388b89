"""Clusters of AWS machines: described by a spec, made by CloudFormation, spoken to through Systems Manager.

`spec`, `template`, `boot`, `cost`, `commands` and `export` are values in, values out; what asks AWS takes its
clients from `session`, the one place that imports boto3.
"""
