"""Rules of decision, pure, on a clock that is passed in: when a change is worth it, whom to trust again, when to stop.

Published facts behind the numbers: most computing slowdowns last about 10 minutes, communication ones about 24, a tail
up to 10 hours (Greyhound); 5 % of the nodes cause a quarter of the faults, and repairs are followed by relapses
(InfiniteHBD trace); a device's speed must be known to 2 % before state is moved for it (our simulations).
"""
