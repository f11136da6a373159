"""Where the conventions of Paddle and torch conflict, in words: the name, what differs, and the other spelling."""

# Functions whose name torch gives another meaning: here they mean what Paddle means.
CONFLICTS = {
    "paddle.max": "torch.max(x, dim) returns values and indices: paddle.compat.max",
    "paddle.min": "torch.min(x, dim) returns values and indices: paddle.compat.min",
    "paddle.sort": "torch.sort returns values and indices: paddle.compat.sort",
    "paddle.split": "torch.split takes the size of a part, not their number: paddle.compat.split",
    "paddle.median": "torch.median takes the lower of two middle values: paddle.compat.median",
    "paddle.nanmedian": "torch.nanmedian takes the lower of two middle values: paddle.compat.nanmedian",
    "paddle.unique": "torch.unique returns no index of first occurrences: paddle.compat.unique",
    "paddle.equal": "torch.equal returns one bool; elementwise it is torch.eq",
    "paddle.linalg.slogdet": "torch.slogdet returns a named tuple: paddle.compat.slogdet",
    "paddle.seed": "torch.seed() draws a seed; this one is torch.manual_seed",
    "paddle.nn.Linear": "the weight is [in, out], torch's is [out, in]: paddle.compat.nn.Linear",
    "paddle.nn.functional.linear": "the weight is [in, out], torch's is [out, in]: paddle.compat.nn.functional.linear",
    "paddle.nn.functional.pad": "a pad of every dimension starts at the first: paddle.compat.nn.functional.pad",
    "paddle.nn.functional.scaled_dot_product_attention": "layout [B, S, H, D], torch's is [B, H, S, D]",
    "paddle.nn.AvgPool1D": "exclusive=True leaves the padding out; torch's count_include_pad=True does not",
    "paddle.nn.AvgPool2D": "exclusive=True leaves the padding out; torch's count_include_pad=True does not",
    "paddle.nn.AvgPool3D": "exclusive=True leaves the padding out; torch's count_include_pad=True does not",
    "paddle.nn.BatchNorm1D": "momentum is one minus torch's",
    "paddle.nn.BatchNorm2D": "momentum is one minus torch's",
    "paddle.nn.BatchNorm3D": "momentum is one minus torch's",
    "paddle.nn.MultiHeadAttention": "batch first, with separate projections of q, k and v",
}
# Attributes of tensors that mean something else on a plain torch.Tensor; `--strict` gives them Paddle's meaning.
TENSOR_METHODS = {
    "max": "x.max(axis) gives values and indices on a torch tensor: paddle.max(x, axis)",
    "min": "x.min(axis) gives values and indices on a torch tensor: paddle.min(x, axis)",
    "sort": "x.sort() gives values and indices on a torch tensor: paddle.sort(x)",
    "split": "x.split(n) makes parts of size n on a torch tensor: paddle.split(x, n)",
    "median": "x.median() takes the lower middle value on a torch tensor: paddle.median(x)",
    "equal": "x.equal(y) is one bool on a torch tensor: paddle.equal(x, y)",
    "unique": "x.unique() returns other parts on a torch tensor: paddle.unique(x)",
    "gather": "x.gather(index) takes torch's arguments: paddle.gather(x, index)",
    "scatter": "x.scatter(index, updates) takes torch's arguments: paddle.scatter(x, index, updates)",
}
