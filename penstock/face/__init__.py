"""What every face (`penstock.v1` and its submodules) has: switches of behaviour, errors for names that are missing."""
