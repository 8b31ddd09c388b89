"""Speech clips and their features: recorded (Speech Commands v0.02) or synthetic (eSpeak NG)."""
