"""Evaluation: how good predictions are, for whom, how well calibrated, and whether two methods
differ beyond chance.

These are exact figures computed from rows. Inside a simulation that is what one wants; about real
patients they are not covered by differential privacy, and whoever publishes them says so.
"""
