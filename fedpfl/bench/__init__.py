"""A bench: a SuperLink of one's own, testbeds of processes, devices, and the bridge over MQTT between them."""
