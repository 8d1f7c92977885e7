"""How the threads of a Triton program share a coarse sum depends on its elements alone.

A loss with metrics takes more sums in one call of `push` than without. Coefficients would have other bits if threads
then added up other elements.
"""

import json
import math
import os
import subprocess
import sys

import pytest

from fibration.backends.triton.language import HELPERS

KERNELS = '''
import json, re, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

{helpers}


@triton.jit
def of_fibres(to, of, before, n, vectors: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, how: tl.constexpr):
    push(to, n.to(tl.int64), of, n, 1, vectors, None, before, 0, n.to(tl.int64), vectors, rows, columns, how)


def layout(kernel, constants):
    """The dimensions of the layout in which threads hold what they add up, without that of the vectors."""
    types = {{"to": "*fp64", "of": "*fp64", "before": "*i64", "n": "i32", **dict.fromkeys(constants, "constexpr")}}
    source = ASTSource(kernel, types, constants)
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={{"num_warps": 8}}).asm["ttgir"]
    reduced = re.findall(r"}}\\) : \\(tensor<(?:\\d+x)+f64, (#\\w+)>\\) ->", text)
    numbers = re.findall(r"\\[([\\d, ]+)\\]", re.search(rf"^{{reduced[-1]}} = (.*)$", text, re.MULTILINE)[1])
    return [json.loads("[" + number + "]")[1:] for number in numbers[:3]]  # sizePerThread, threadsPerWarp, warpsPerCTA


print(json.dumps([
    [layout(of_fibres, {{"vectors": v, "rows": 1024 // c, "columns": c, "how": how, **more}}) for v in (1, 2, 4)]
    for c, how, more in ((1024, "sum", {{"before": None}}), (256, "sum", {{}}), (16, "max", {{}}))
]))
'''


@pytest.mark.thorough
def test_threads_share_a_sum_in_the_same_way_whatever_is_summed_beside_it(tmp_path):
    names = ("joined", "fresh", "push")
    (tmp_path / "sums.py").write_text(KERNELS.format(helpers="\n\n\n".join(HELPERS[name] for name in names)))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, tmp_path / "sums.py"], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    for layouts in found:
        assert all(one == layouts[0] for one in layouts), layouts
        _, threads, warps = layouts[0]
        assert math.prod(threads) * math.prod(warps) == 256, "vectors are divided among threads"
