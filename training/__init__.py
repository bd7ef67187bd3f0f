"""Making the embedded demonstration voice: a tiny Ming-omni-tts of the released layout.

Imports the torch modules of `export/`, so what is trained is what is exported. Never shipped.
"""
