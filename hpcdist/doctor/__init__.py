"""`hpcdist doctor`: what of a cluster works for hpcdist, one finding after the other."""
