"""Spark: how much serialised data single tasks handle, from the REST API of drivers and history servers."""
