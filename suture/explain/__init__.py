"""Why a model says what it says: about one patient, about one radiograph, at each hospital; and
what its model card says."""
