"""Where plans, models and processes are joined: training, evaluation, prediction."""
