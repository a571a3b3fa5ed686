"""De-identification of tables and DICOM files."""
