"""perflab.native: what is compiled, what is refused, and what the refusal says."""

import shutil
import struct

import numpy as np
import pytest

from perflab import native
from perflab.exercises import stride

PROTOTYPES = stride.PROTOTYPES
GOOD = """#include <stddef.h>
#include <stdint.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    uint64_t h = 0;
    for (size_t first = 0; first < stride && first < n; first++)
        for (size_t i = first;; i += stride) {
            h = h * 31 + a[i];
            if (n - i <= stride) break;
        }
    return h;
}
"""
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed here"))
    for name in ("gcc", "clang")
]


def add(code: str) -> str:
    return GOOD + code + "\n"


def refusal(source: str, compiler=None) -> native.CError:
    with pytest.raises(native.CError) as caught:
        native.build(source, PROTOTYPES, compiler=compiler)
    error = caught.value
    assert any("\u4e00" <= char <= "\u9fff" for char in error.zh)
    assert "\n\n" not in error.en and "\n\n" not in error.zh, "messages are joined by a blank line"
    return error


@pytest.mark.parametrize("compiler", COMPILERS)
def test_builds_and_calls(compiler):
    functions = stride.bind(native.load(native.build(GOOD, PROTOTYPES, compiler=compiler).shared))
    a = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    for step in (1, 7, 8, 999, 1000, 5000, 2**64 - 1):
        assert functions.walk(a, a.size, step) == stride.hash_of(a, step)
    with pytest.raises(TypeError, match="uint64"):
        functions.walk(a.astype(np.float64), 10, 1)
    with pytest.raises(ValueError, match="do not fit"):
        functions.walk(a, 1001, 1)


REFUSED = {
    "empty": ("", "must be a string"),
    "null character": (add("\0"), "null character"),
    "semicolon": (GOOD.replace("h = 0;", "h = 0"), "Line "),
    "brace": (GOOD.rstrip().removesuffix("}"), "closing brace"),
    "no stdint": (GOOD.replace("#include <stdint.h>\n", "\n"), "#include <stdint.h>"),
    "spelling": (GOOD.replace("walk", "wolk"), "does not define `walk`"),
    "static": (GOOD.replace("uint64_t walk", "static uint64_t walk"), "take `static` away"),
    "prototype": (GOOD.replace("size_t stride)", "int stride)"), "uint64_t walk(const uint64_t *, size_t, size_t)"),
    "printf": (add("#include <stdio.h>\nvoid f(void) { printf(\"%d\\n\", 1); }"), "`p"),
    "own declaration": (add("int system(const char *); void f(void) { system(\"true\"); }"), "`system`"),
    "weak": (add("__attribute__((weak)) int kill(int, int); void f(void) { if (kill) kill(1, 9); }"), "`kill`"),
    "renamed symbol": (add('void g(void) __asm__("_exit"); void f(void) { g(); }'), "`_exit`"),
    "sanitizer runtime": (add("void __asan_init(void); void f(void) { __asan_init(); }"), "`__asan_init`"),
    "constructor": (add("volatile int ran; __attribute__((constructor)) void f(void) { ran = 1; }"), "by itself"),
    "destructor": (add("volatile int ran; __attribute__((destructor)) void f(void) { ran = 1; }"), "by itself"),
    "init array": (add('void f(void) {} __attribute__((section(".init_array"), used)) void (*const p)(void) = f;'), "by itself"),
    "preinit array": (add('void f(void) {} __attribute__((section(".preinit_array"), used)) void (*const p)(void) = f;'), "by itself"),
    "_init": (add("volatile int ran; void _init(void) { ran = 1; }"), "by itself"),
    "own section": (add('int x __attribute__((section("mine"))) = 1;'), "section `mine`"),
    "code in data": (add('__attribute__((section(".data.x"))) void f(void) {}'), ""),
    "asm directive": (add('void f(void) { __asm__ volatile(".byte 0x90"); }'), "directive"),
    "asm at file level": (add('__asm__(".globl evil\\nevil: ret");'), "directive"),
    "no sanitizer": (add('__attribute__((no_sanitize("address"))) void f(void) {}'), "sanitizers off"),
    "no sanitizer, pasted": (add("#define A(x) no_##x\n__attribute__((A(sanitize)(\"address\"))) void f(void) {}"), "sanitizers off"),
    "itself": ("#include __FILE__\n" + GOOD, "may be included"),
    "huge array": (add("int huge[1 << 28] = {1};"), "32 MB"),
}  # fmt: skip


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name, compiler):
    source, expected = REFUSED[name]
    assert expected in refusal(source, compiler).en


@pytest.mark.parametrize("compiler", COMPILERS)
def test_refuses_ifunc(compiler):
    code = 'static void g(void) {}\nstatic void *choose(void) { return g; }\nvoid f(void) __attribute__((ifunc("choose")));'
    assert "ifunc" in refusal(add(code), compiler).en


KERNEL = {"x86_64": ("syscall", "sysenter", "int $0x80"), "aarch64": ("svc #0", "hvc #0")}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_refuses_to_enter_the_kernel(compiler):
    import platform

    instructions = KERNEL.get(platform.machine())
    assert instructions, f"say here how a {platform.machine()} enters its kernel"
    for instruction in instructions:
        error = refusal(add(f'void f(void) {{ __asm__ volatile("{instruction}"); }}'), compiler)
        assert f"`{instruction.split()[0]}`" in error.en


@pytest.mark.parametrize(
    "listing",
    [
        "   0:\t0f 05                \tsyscall",
        "   0:\tf3 0f 05             \trepz syscall",
        "   0:\tcd 80                \tint    $0x80",
        "   0:\td4000001 \tsvc\t#0x0",
        "   0:\td4000022 \thvc\t#0x1",
        "   0:\tb8 0f 05 0f 05       \tmov    $0x50f050f,%eax\n   5:\tff e2                \tjmp    *%rdx",
    ],
)
def test_kernel_instructions_of_x86_and_arm_are_known(listing):
    with pytest.raises(native.CError, match="enters the kernel"):
        native._check_instructions(listing)


@pytest.mark.parametrize(
    "listing",
    [
        "   0:\tb8 0f 05 0f 05       \tmov    $0x50f050f,%eax\n   5:\tc3                   \tret",  # a constant, and nothing jumps into it
        "   0:\t83 e0 0f             \tand    $0xf,%eax\n   3:\t05 e8 03 00 00       \tadd    $0x3e8,%eax",
        "   0:\t8b010000 \tadd\tx0, x0, x1\n   4:\td65f03c0 \tret",
    ],
)
def test_ordinary_instructions_are_let_through(listing):
    native._check_instructions(listing)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_lets_ordinary_c_through(compiler):
    """Barriers, memcpy, constants, tables, static helpers, recursion, big switches, doubles."""
    code = """
#include <math.h>
#include <string.h>
static const double table[] = {1.5, 2.5};
static uint64_t counter;
static int helper(int n) { return n < 2 ? 1 : helper(n - 1) + helper(n - 2); }
int f(unsigned x, void *to, const void *from, size_t n) {
    memcpy(to, from, n);
    memset(to, 0, n / 2);
    memmove(to, from, n / 3);
    __asm__ volatile("" ::: "memory");
    counter++;
    switch (x) {
    case 0: return 3; case 1: return helper(4); case 2: return 11; case 3: return 5; case 4: return 99; case 5: return 1;
    case 6: return 4; case 7: return (int)(table[n % 2] * 2); case 8: return 0x1234; default: return (x & 7) + 1000;
    }
}
int extra(int read, int write) { return read + write; }
int read_it(void) { return 0; }
"""
    native.build(add(code), PROTOTYPES, compiler=compiler)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_messages_quote_the_students_source_only(compiler, tmp_path):
    secret = tmp_path / "secret.h"
    secret.write_text("topsecret = 41 +;\n#error hidden words\n")
    for code in (f'#include "{secret}"\n' + GOOD, GOOD + f'int x =\n#include "{secret}"\n;\n', f'#define F "{secret}"\n#include F\n' + GOOD):
        error = refusal(code, compiler)
        for text in (error.en, error.zh):
            assert "topsecret" not in text and "hidden words" not in text and "41" not in text
        assert "may be included" in error.en
    numbered = refusal('#include "no/such/header.h"\n' + GOOD, compiler)
    assert "Line 1: `#include \"no/such/header.h\"`" in numbered.en


@pytest.mark.parametrize("compiler", COMPILERS)
def test_error_names_the_line(compiler):
    error = refusal(GOOD.replace("h = h * 31 + a[i];", "h = h * 31 + b[i];"), compiler)
    assert "Line 8: `h = h * 31 + b[i];`" in error.en
    assert "第 8 行" in error.zh


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_unsolved_notebook_is_told_so(compiler):
    """nbgrader puts its stub for Python into the C string too."""
    unsolved = "#include <stddef.h>\n#include <stdint.h>\nuint64_t walk(const uint64_t *a, size_t n, size_t s) {\n    # YOUR CODE HERE\n    raise NotImplementedError()\n}\n"
    assert "still waits for your code" in refusal(unsolved, compiler).en


def cases(*pairs) -> bytes:
    return struct.pack("<Q", len(pairs)) + b"".join(struct.pack("<2Q", a.size, step) + a.tobytes() for a, step in pairs)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_sanitized_run(compiler):
    a = np.arange(10, dtype=np.uint64)
    built = native.build(GOOD, PROTOTYPES, compiler=compiler)
    written = native.sanitized_run(built, "stride_driver.c", cases((a, 3), (a[:0], 1), (a, 2**64 - 1)))
    assert np.frombuffer(written, np.uint64).tolist() == [stride.hash_of(a, 3), 0, stride.hash_of(a, 2**64 - 1)]


FOUND = {
    "reads behind": ("return h;", "return h + a[n];", "outside its buffer"),
    "writes": ("return h;", "((uint64_t *)a)[n] = 1;\n    return h;", "writes 8 bytes outside its buffer"),
    "misaligned": ("return h;", "return h + *(const uint64_t *)((const char *)a + 1);", "memcpy"),
    "undefined": ("return h;", "int x = 0x7fffffff;\n    return h + (x + (int)stride > 0);", "leaves undefined"),
    "null": ("return h;", "return *(volatile uint64_t *)(stride - 3) + h;", ""),
    "no end": ("return h;", "for (volatile size_t i = 0; i < 1; i *= 2) {}\n    return h;", "did not come to an end"),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", FOUND)
def test_sanitizers_find(name, compiler):
    before, after, expected = FOUND[name]
    source = GOOD.replace(before, after)
    built = native.build(source, PROTOTYPES, compiler=compiler)
    with pytest.raises(native.CError) as caught:
        native.sanitized_run(built, "stride_driver.c", cases((np.arange(4, dtype=np.uint64), 3)), timeout_s=3)
    assert expected in caught.value.en
    if name in ("misaligned", "undefined"):
        line = source.splitlines().index(next(text for text in source.splitlines() if text.strip() == after.splitlines()[-1].strip())) + 1
        assert f"Line {line}, `{after.splitlines()[-1].strip()}`," in caught.value.en


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_answer_cannot_stand_in_for_libc_or_the_sanitizers(compiler):
    """Its other global functions are local to it, whatever they are called."""
    code = """
const char *__asan_default_options(void) { return "exitcode=0:halt_on_error=0"; }
void *malloc(size_t n) { return (void *)n; }
int main(void) { return 0; }
"""
    built = native.build(add(code).replace("return h;", "return h + a[n];"), PROTOTYPES, compiler=compiler)
    with pytest.raises(native.CError, match="outside its buffer"):
        native.sanitized_run(built, "stride_driver.c", cases((np.arange(4, dtype=np.uint64), 3)))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_one_source_for_both_builds(compiler):
    """What a source can ask of the preprocessor is the same with and without the sanitizers."""
    code = """
#ifdef __SANITIZE_ADDRESS__
#error seen
#endif
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#error seen
#endif
#endif
#ifndef __OPTIMIZE__
#error seen
#endif
"""
    native.sanitized_run(native.build(add(code), PROTOTYPES, compiler=compiler), "stride_driver.c", cases((np.arange(3, dtype=np.uint64), 1)))


def test_says_when_there_is_no_compiler(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(native.NoCompiler, match="install"):
        native.build(GOOD, PROTOTYPES)


def test_functions_for_a_notebook():
    functions = native.functions("stride", GOOD)
    assert functions.walk(np.arange(3, dtype=np.uint64), 3, 2) == (0 * 31 + 2) * 31 + 1


@pytest.mark.parametrize("name", ["alignment_driver.c", "stride_driver.c", "cache_size_driver.c", "alignment_probe.c", "stride_probe.c", "cache_size_probe.c"])
def test_our_own_c_has_no_warnings(name):
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-c", "x.c"]
    done = native.run_here([native.compiler_path(), *flags], {"x.c": (native.CSRC / name).read_bytes()})
    assert done.returncode == 0, done.stderr


def test_a_compiler_bomb_is_contained():
    """In the sandbox, as when grading: 2 GiB of memory and a minute are the most that a source can cost."""
    from grader import judging

    bomb = "#define X(a) a a a a a a a a a a a a a a a a\n#define Y(a) X(X(X(X(a))))\nint bomb = Y(Y(+ 1));\n"
    with pytest.raises(native.CError, match=r"stopped|32 MB"):
        native.build(GOOD + bomb, PROTOTYPES, judging.launcher().run)
