"""Why a model says what it says about one patient. Plain values in, plain values out; drawing is `report`'s."""
