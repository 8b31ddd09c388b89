"""Speech clips and their features: recorded words (Speech Commands or others) or synthetic ones (eSpeak NG)."""
