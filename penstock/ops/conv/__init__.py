"""Windows that move over images and volumes: convolutions, pools, blocks of space."""
