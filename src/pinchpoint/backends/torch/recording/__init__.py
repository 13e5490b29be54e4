"""Recording of a real run of PyTorch: functions of torch that report their calls to a `Recorder`."""
