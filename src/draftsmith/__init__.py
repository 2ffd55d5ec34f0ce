"""draftsmith trains DFlash drafters: small models that propose a big language model's next tokens, block by block."""

__version__ = "0.1.0"
