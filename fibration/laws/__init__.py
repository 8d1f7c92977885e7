from collections import namedtuple
_L=namedtuple("_L","may_be_given_up")
LAWS={"first_order":_L(True)}
