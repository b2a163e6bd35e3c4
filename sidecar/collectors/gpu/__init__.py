"""What every vendor's GPU collector shares: metric names, readings made into samples, figures worked out of them."""
