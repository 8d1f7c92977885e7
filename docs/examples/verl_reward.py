"""The score of data of verl_data.py: whether the last line is the answer."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    lines = solution_str.strip().splitlines() or [""]
    return float(lines[-1].strip(" .`*").lower() == ground_truth)
