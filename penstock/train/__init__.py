"""Training loops: coordinated threads, queue runners, sessions that are initialised, recovered and watched by hooks."""
