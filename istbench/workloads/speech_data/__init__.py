"""Speech clips and their features: recorded (Speech Commands, or any words) or synthetic (eSpeak NG)."""
