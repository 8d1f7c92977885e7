"""One ratio per sequence, or one that its tokens share: GSPO and its kin."""
