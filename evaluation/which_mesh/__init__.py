"""What ``tl.advise`` answers for six training steps, against expert plans and compilers."""
