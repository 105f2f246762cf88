"""Access control: who may ask for what (`aclEnable`)."""
