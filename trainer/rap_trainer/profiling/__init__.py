"""`rap profile`: measures kernels, the step's windows and links on the job's own model and device. Plans nothing."""
