"""What data sets share: samples made by processes of their own, in folders that are continued and checked."""
