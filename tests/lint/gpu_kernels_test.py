"""scripts/gpu_kernels finds kernels that have grown, on what a compiler has said."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
KERNEL = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN6sortie7trainer3ops4cuda{n}{name}IfEEvPT_' for '{arch}'
ptxas info    : Function properties for _ZN6sortie7trainer3ops4cuda{n}{name}IfEEvPT_
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used {registers} registers, used 0 barriers, 448 bytes cmem[0]
"""


def said(*kernels):
    return "".join(KERNEL.format(n=len(name), name=name, arch=arch, registers=registers, stack=stack, spill=spill) for name, arch, registers, stack, spill in kernels)


with tempfile.TemporaryDirectory() as folder:
    build, table = pathlib.Path(folder) / "build", pathlib.Path(folder) / "table.tsv"
    (build / "CMakeFiles/3").mkdir(parents=True)
    compiler = build / "CMakeFiles/3/CMakeCUDACompiler.cmake"
    compiler.write_text('set(CMAKE_CUDA_COMPILER_VERSION "13.0.88")')
    resources = build / "elementwise.cu.o.resources"

    def run(text, *options):
        resources.write_text(text)
        done = subprocess.run([ROOT / "scripts/gpu_kernels", "--build", build, "--table", table, *options], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def expect(code, words, text, *options):
        got, out = run(text, *options)
        assert got == code and words in out, (code, words, got, out)

    before = (("add", "sm_80", 40, 0, 0), ("add", "sm_90", 40, 0, 0), ("scale", "sm_80", 16, 8, 0), ("scale", "sm_90", 16, 0, 0))
    expect(1, "not in the table", said(*before))
    expect(0, "2 kernels", said(*before), "--update")
    assert table.read_text().splitlines() == ["CUDA 13.0\tsm_80\tsm_90", "elementwise add<float>\t40\t40", "elementwise scale<float>\t16 stack 8\t16"], table.read_text()
    expect(0, "are as in the table", said(*before))
    expect(0, "are as in the table", said(("add", "sm_80", 44, 0, 0), *before[1:]))
    expect(1, "elementwise add<float>, sm_80: 45, where the table has 40", said(("add", "sm_80", 45, 0, 0), *before[1:]))
    expect(1, "sm_90: 40 spill 8, where", said(before[0], ("add", "sm_90", 40, 0, 4), *before[2:]))
    expect(1, "sm_90: 16 stack 8, where", said(*before[:3], ("scale", "sm_90", 16, 8, 0)))
    expect(1, "scale<float>, sm_90: in the table alone", said(*before[:3]))
    expect(1, "sm_120: not in the table", said(*before, ("add", "sm_120", 40, 0, 0)))
    # What ptxas notes beside sizes.
    note = "ptxas info    : ({}) Potential Performance Loss: wgmma.mma_async instructions are serialized due to {} in function '_ZN6sortie7trainer3ops4cuda3addIfEEvPT_'\n"
    serialized = note.format("C7510", "insufficient register resources") + said(*before)
    expect(1, "elementwise.cu: ptxas: C7510: Potential Performance Loss: wgmma.mma_async instructions are serialized", serialized)
    expect(1, "in function 'add<float>'", serialized)
    expect(1, "C7510", serialized, "--update")
    expect(0, "C7510", serialized, "--list")
    expect(0, "are as in the table", note.format("C7519", "nothing") + said(*before))
    # The build has one architecture: the other's figures stay.
    expect(0, "sm_90 written", said(("add", "sm_90", 50, 0, 0), ("scale", "sm_90", 16, 0, 0)), "--update")
    expect(0, "are as in the table", said(before[0], ("add", "sm_90", 50, 0, 0), *before[2:]))
    expect(1, "told of two kernels at once", said(*before).replace("ptxas info    : Used 40 registers, used 0 barriers, 448 bytes cmem[0]\n", "", 1))
    compiler.write_text('set(CMAKE_CUDA_COMPILER_VERSION "13.1.10")')
    expect(1, "C7510", serialized)
    expect(77, "not compared: the table is CUDA 13.0's, the build CUDA 13.1's", said(("add", "sm_90", 99, 0, 0)))
