"""pytest puts the folder of this file on the path, for helpers that tests of folders below import."""
