"""perflab.compilers: products are kept by content, failures say what the compiler said."""

import pytest

from perflab import compilers

needs_cxx = pytest.mark.skipif(compilers.cxx() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def products(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "_products", lambda: tmp_path / "products")
    return tmp_path / "products"


def test_product_is_built_once_for_a_key():
    calls = []

    def build(path):
        calls.append(path)
        path.write_bytes(b"x" * 1234)

    first = compilers.product("a", ["key", b"1"], build)
    again = compilers.product("a", ["key", b"1"], build)
    other = compilers.product("a", ["key", b"2"], build)
    shifted = compilers.product("a", ["ke", b"y1"], build)  # the same bytes, divided differently
    assert len(calls) == 3 and again.reused and not first.reused and not other.reused and not shifted.reused
    assert again.path == first.path and again.seconds == first.seconds and first.path.stat().st_size == 1234
    assert "1,234 bytes" in str(again) and "earlier" in str(again) and "now" in str(first)


def test_interrupted_build_leaves_nothing(products):
    def build(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compilers.product("a", ["key"], build)
    assert not list(products.iterdir())
    assert not compilers.product("a", ["key"], lambda path: path.write_bytes(b"whole")).reused


@needs_cxx
def test_cpp_program_links_against_torch_and_runs():
    source = """
    #include <iostream>
    #include <ATen/ops/ones.h>
    int main() { std::cout << at::ones({3, 4}).sum().item<float>(); }
    """
    program = compilers.cpp_program(source, "twelve")
    assert compilers.run_program(program.path) == "12"
    assert compilers.cpp_program(source, "twelve").reused
    assert not compilers.cpp_program(source + "\n// changed", "twelve").reused


@needs_cxx
def test_compiler_s_message_is_quoted():
    with pytest.raises(compilers.BuildFailed, match="no_such_thing"):
        compilers.cpp_program("int main() { return no_such_thing; }", "bad")


def test_without_a_compiler_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(compilers, "cxx", lambda: None)
    with pytest.raises(compilers.BuildFailed, match="Install g\\+\\+"):
        compilers.cpp_program("int main() {}", "none")


@needs_cxx
def test_failing_program_s_status_and_message_are_quoted():
    source = '#include <iostream>\nint main() { std::cerr << "out of tea"; return 3; }'
    with pytest.raises(compilers.BuildFailed, match="status 3:\nout of tea"):
        compilers.run_program(compilers.cpp_program(source, "three").path)


def test_fresh_python_knows_nothing_of_this_process(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    done = compilers.fresh_python(
        "import sys; print('compilers' in globals(), 'torch' in sys.modules, '/nowhere' in sys.path, sys.argv[1:])",
        "one",
    )
    assert (done.returncode, done.stdout.split(maxsplit=3)) == (0, ["False", "False", "False", "['one']\n"])


def test_fresh_python_reports_a_failure():
    done = compilers.fresh_python("raise SystemExit('no class')")
    assert done.returncode == 1 and "no class" in done.stderr
