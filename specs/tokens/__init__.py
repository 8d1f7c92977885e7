"""One ratio per token: PPO and what clips, weighs or bends it."""
