"""Defines and loads the settings of `dspark train`."""
