"""What the cloud charges: exports and APIs read seldom, turned into the few aggregates that rules look at."""
