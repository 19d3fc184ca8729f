"""`resihp launch`: starts the ranks of a data-parallel job, decides who is alive, and keeps where they meet.

`members` decides (pure), `ranks` are the processes and their lines, `job` puts the two together. The other end of a
line is `resihp_attach.ddp.line`.
"""
