"""Compile a C answer, check it, call it.

    functions = native.functions("alignment", C_SOURCE)       # in a notebook
    functions.sum_words(buffer, 0, 8, 1000)

:func:`build` takes C source to a shared library in four steps, each run as a command through `run` (the judge's
runs it in a sandbox; :func:`run_here` runs it in a temporary folder):

1. Preprocess, once: both builds below start from the same preprocessed text, so a source can't show the
   sanitizers another face (``#ifdef __SANITIZE_ADDRESS__``). Headers outside the compiler's own folders are refused.
2. Compile with ``-std=gnu11 -O2``, the course's prototypes appended, so that a wrong parameter list is an error.
3. Look at the object file with nm, readelf and objdump: which symbols it lacks, which sections it has, whether it
   enters the kernel. What is not known to be harmless is refused.
4. Link a shared library that exports the asked functions and nothing else.

:func:`sanitized_run` builds the same text with the address and undefined-behaviour sanitizers and runs it under a
driver of ours. Errors come back as :class:`CError`: in plain words, with the student's own line numbers, quoting
lines of the student's source only, in English and Chinese.

The object file is inspected on Linux only (ELF); elsewhere, that is on a student's Mac, only undefined symbols are.
Libraries are called with ctypes: the signatures are a handful and fixed, which needs neither cffi's parser nor a
second compiled module.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perflab.launch import Finished

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-w", "-fdiagnostics-color=never")
SANITIZER_FLAGS = ("-std=gnu11", "-O1", "-g", "-w", "-fPIC", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
                   "-fno-sanitize-recover=all")  # fmt: skip
MAX_SOURCE_BYTES = 200_000
_MAX_FILE_BYTES = 32 << 20
_PROTOTYPES_FILE = "course-prototypes"
CSRC = Path(__file__).with_name("csrc")


class CError(Exception):
    """The C source can't be accepted: `en` and `zh` say why, with the student's line numbers."""

    def __init__(self, en: str, zh: str):
        super().__init__(f"{en}\n\n{zh}")
        self.en, self.zh = en, zh


class NoCompiler(RuntimeError):
    """This machine lacks a C compiler, or its sanitizers; the text says which and how to install it."""


@dataclass(frozen=True)
class Built:
    """A checked C answer: `shared` is the library's bytes, `preprocessed` what both builds start from."""

    source: str
    exports: tuple[str, ...]
    preprocessed: bytes
    shared: bytes
    compiler: str


# ---------------------------------------------------------------- running commands


def run_here(argv, files=None, collect=(), timeout_s: float = 60, **_limits) -> Finished:
    """Runs a command on this machine, unboxed, in a temporary folder: for one's own code. As Launcher.run."""
    with tempfile.TemporaryDirectory(prefix="perflab-c-") as folder:
        for name, content in (files or {}).items():
            Path(folder, name).write_bytes(content)
        try:
            done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, out, err = -9, error.stdout or b"", error.stderr or b""
        found = {name: Path(folder, name).read_bytes() for name in collect if Path(folder, name).is_file()}
    return Finished(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), found)


def compiler_path(name: str | None = None) -> str:
    """The C compiler: `name`, or the first of gcc, clang and cc there is. Raises NoCompiler."""
    for candidate in (name,) if name else ("gcc", "clang", "cc"):
        found = shutil.which(candidate)
        if found:
            return found
    raise NoCompiler(
        f"no C compiler ({name or 'gcc, clang or cc'}) was found; install one: `apt install gcc`, on macOS `xcode-select --install`"
    )


# ---------------------------------------------------------------- building


def build(source: str, prototypes: dict[str, str], run=run_here, compiler: str | None = None) -> Built:
    """Compiles, checks and links `source`.

    prototypes: the functions asked for, name to declaration, in types that need no header (``__SIZE_TYPE__``).
    Raises CError where the source is at fault, NoCompiler where the machine is.
    """
    cc = _Compiler(compiler_path(compiler), run)
    text = _checked_source(source)
    preprocessed = _preprocess(cc, source, text, prototypes, run)
    assembly = _compile(cc, "-S", "answer.s", source, preprocessed, prototypes, run)
    _check_assembly(assembly.decode("utf-8", "replace"))
    code = _compile(cc, "-c", "answer.o", source, preprocessed, prototypes, run)
    _check_object(code, source, tuple(prototypes), run)
    shared = _link(cc, code, tuple(prototypes), run)
    return Built(source, tuple(prototypes), preprocessed, shared, cc.path)


class _Compiler:
    """A compiler's path, the flags that keep its messages to one line each, and where it finds ``#include <…>``."""

    def __init__(self, path: str, run):
        self.path = path
        if path not in _asked:
            _asked[path] = run([path, "-E", "-v", "-x", "c", os.devnull], {}, [], 20)
        said = _asked[path]
        found = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", said.stderr, re.S)
        if said.returncode or not found:
            raise NoCompiler(f"{path} does not work here: {said.stderr.strip()[-300:] or 'it said nothing'}")
        listed = [line.strip().removesuffix(" (framework directory)") for line in found[1].splitlines()]
        self.folders = [os.path.normpath(folder) + os.sep for folder in listed]
        if "clang version" in said.stderr:
            self.flags = [*FLAGS, "-fno-caret-diagnostics", *(["-fno-addrsig"] if _elf() else [])]
        else:
            self.flags = [*FLAGS, "-fno-diagnostics-show-caret"]


_asked: dict[str, Finished] = {}


def _checked_source(source) -> bytes:
    if type(source) is not str or not source.strip():
        raise CError(
            "`C_SOURCE` must be a string with your C source in it.", "`C_SOURCE` 必须是一个字符串，内容是你的 C 源代码。"
        )
    text = source.encode("utf-8", "replace")
    if "\0" in source or len(text) > MAX_SOURCE_BYTES:
        raise CError(
            f"`C_SOURCE` must have no null character and at most {MAX_SOURCE_BYTES // 1000} kB.",
            f"`C_SOURCE` 不能含有空字符，长度不能超过 {MAX_SOURCE_BYTES // 1000} kB。",
        )
    return text


def _preprocess(cc, source, text, prototypes, run) -> bytes:
    lines = "".join(f'\n#line 1 "{_PROTOTYPES_FILE}-{name}"\n{declaration};\n' for name, declaration in prototypes.items())
    done = run(
        [cc.path, *cc.flags, "-E", "-H", "answer.c", "-o", "answer.i"], {"answer.c": text + lines.encode()}, ["answer.i"], 20,
        file_bytes=_MAX_FILE_BYTES, memory_bytes=1 << 30,
    )  # fmt: skip
    _check_includes(source, done.stderr, cc.folders)
    if done.returncode:
        raise _compile_error(source, done, prototypes)
    preprocessed = done.files.get("answer.i", b"")
    if not preprocessed or len(preprocessed) >= _MAX_FILE_BYTES:
        raise _too_big()
    if re.search(rb"no_sanitize|no_address_safety|disable_sanitizer", preprocessed):
        raise CError(
            "Your C switches the sanitizers off (`no_sanitize`). They check that every access is inside its buffer and well"
            " defined; take that attribute out.",
            "你的 C 代码关闭了检查工具（`no_sanitize`）。这些工具用来确认每次访问都在缓冲区内且行为有定义；请去掉这个属性。",
        )
    return preprocessed


def _check_includes(source, stderr, folders) -> None:
    for line in stderr.splitlines():
        opened = re.fullmatch(r"\.+ (.+)", line)
        if opened and not any(os.path.normpath(opened[1]).startswith(folder) for folder in folders):
            name = opened[1]
            number, quoted = next(
                ((i, text) for i, text in enumerate(source.splitlines(), 1) if "include" in text and Path(name).name in text),
                (None, ""),
            )
            where_en, where_zh = (f"Line {number}: `{_clip(quoted)}`. ", f"第 {number} 行：`{_clip(quoted)}`。") if number else ("", "")
            raise CError(
                where_en + "Only the C library's and the compiler's own headers may be included, such as <stdint.h>, <stddef.h>, <string.h>.",
                where_zh + "只能包含 C 标准库和编译器自带的头文件，例如 <stdint.h>、<stddef.h>、<string.h>。",
            )


def _compile(cc, step, output, source, preprocessed, prototypes, run) -> bytes:
    done = run(
        [cc.path, *cc.flags, step, "answer.i", "-o", output], {"answer.i": preprocessed}, [output], 60,
        file_bytes=_MAX_FILE_BYTES, memory_bytes=2 << 30,
    )  # fmt: skip
    if done.returncode:
        raise _compile_error(source, done, prototypes)
    if not done.files.get(output) or len(done.files[output]) >= _MAX_FILE_BYTES:
        raise _too_big()
    return done.files[output]


def _too_big() -> CError:
    return CError(
        "The compiler made a file of more than 32 MB from your source. Is there a huge initialised array, or a macro that"
        " expands without end?",
        "编译器从你的源代码生成了超过 32 MB 的文件。是否有巨大的已初始化数组，或不断展开的宏？",
    )


def _link(cc, code, exports, run) -> bytes:
    keep = _localise("answer.o", exports)
    done = run(
        ["/bin/sh", "-c", f'{keep} "$0" -shared -o answer.so answer.o', cc.path], {"answer.o": code}, ["answer.so"], 30
    )  # fmt: skip
    if done.returncode or not done.files.get("answer.so"):
        raise CError(
            f"Your object file could not be linked: {_clip(done.stderr, 300)}", f"目标文件无法链接：{_clip(done.stderr, 300)}"
        )
    return done.files["answer.so"]


def _localise(name: str, exports) -> str:
    """A shell command that hides all of an object's symbols but `exports`: none then replaces one of ours or libc's."""
    if not _elf():
        return ""
    keep = " ".join(f"--keep-global-symbol={symbol}" for symbol in exports)
    return f"objcopy {keep} {name} &&"


def _elf() -> bool:
    return sys.platform.startswith("linux")


# ---------------------------------------------------------------- a compiler's messages, in plain words

# What a message contains → what to tell the student. Messages of gcc and of clang.
_PLAIN = (
    (r"invalid preprocessing directive( #YOUR|$)", "this place still waits for your code", "这里还没有写代码"),
    (r"No such file|file not found", "there is no such header here; check its spelling", "没有这个头文件，请检查拼写"),
    (r"unknown type name .?u?int\d+_t|undeclared.*u?int\d+_t|undeclared identifier 'u?int\d+_t", "add `#include <stdint.h>`",
     "请加上 `#include <stdint.h>`"),
    (r"unknown type name .?size_t|size_t.? undeclared|undeclared identifier 'size_t", "add `#include <stddef.h>`", "请加上 `#include <stddef.h>`"),
    (r"unknown type name", "this type is not known here: a spelling mistake, or a missing #include", "这里不认识这个类型：拼写有误，或缺少 #include"),
    (r"undeclared|use of undeclared", "this name is not declared before it is used: a spelling mistake, or a missing declaration",
     "这个名字在使用前没有声明：拼写有误，或缺少声明"),
    (r"expected .*';'", "a semicolon is missing, often at the end of the line before", "缺少分号，往往在上一行末尾"),
    (r"end of input|expected '}'", "a closing brace `}` is missing", "缺少右花括号 `}`"),
    (r"expected '\)'|expected '\('", "the parentheses do not match", "圆括号不配对"),
    (r"too few arguments|too many arguments", "the call has not as many arguments as the function takes", "调用时的参数个数与函数定义不符"),
    (r"redefinition of", "this name is defined twice", "这个名字被定义了两次"),
    (r"invalid operands|incompatible|makes pointer from integer|makes integer from pointer", "the types on the two sides do not fit: is it the pointer or the value it points to?",
     "两边的类型不匹配：用的是指针，还是它指向的值？"),
    (r"void value|has incomplete type|incomplete result type", "a `void` has no value and can't be used as one", "`void` 没有值，不能当作值使用"),
    (r"subscripted value|is not (a|an) (array|pointer)", "only an array or a pointer can be indexed", "只有数组或指针才能用下标访问"),
    (r"assignment of read-only|cannot assign to|const-qualified", "this is `const` and can't be written", "这是 `const`，不能写入"),
    (r"stray|unterminated|missing terminating", "a quote or comment is not closed, or there is a character that C does not know (a Chinese 。；（）?)",
     "引号或注释没有结束，或含有 C 不认识的字符（是否用了中文标点？）"),
    (r"size of array|too large|exceeds maximum object size", "this array is too large", "这个数组太大"),
)  # fmt: skip
_QUOTES = {0x2018: "'", 0x2019: "'"}
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.M)


def _compile_error(source, done: Finished, prototypes) -> CError:
    """The first errors in the student's own lines. Errors located in other files are not shown: their text quotes those."""
    if done.returncode == -9 or "virtual memory exhausted" in done.stderr or "out of memory" in done.stderr:
        return CError(
            "The compiler was stopped: it ran out of time or memory on your source. Look for a macro that expands without end"
            " or a huge initialised array.",
            "编译器因超时或内存不足被终止。请检查是否有不断展开的宏，或巨大的已初始化数组。",
        )
    lines = source.splitlines()
    en, zh = [], []
    for error in _ERROR.finditer(done.stderr):
        number, text = int(error["line"]), _clip(error["text"].translate(_QUOTES))
        if error["file"].startswith(_PROTOTYPES_FILE):
            name = error["file"].removeprefix(_PROTOTYPES_FILE + "-")
            if re.search(r"end of input|expected", text):
                en.append("The source ends inside a function: a closing brace `}` is missing.")
                zh.append("源代码在函数内部就结束了：缺少右花括号 `}`。")
            else:
                en.append(f"`{name}` must be declared as `{readable(prototypes.get(name, ''))}`.")
                zh.append(f"`{name}` 必须声明为 `{readable(prototypes.get(name, ''))}`。")
        elif error["file"] == "answer.c" and 1 <= number <= len(lines):
            plain = next(((e, z) for pattern, e, z in _PLAIN if re.search(pattern, text)), None)
            quoted = _clip(lines[number - 1])
            en.append(f"Line {number}: `{quoted}` — {text}" + (f" ({plain[0]})." if plain else "."))
            zh.append(f"第 {number} 行：`{quoted}` — {text}" + (f"（{plain[1]}）。" if plain else "。"))
        if len(set(en)) == 3:
            break
    if not en:
        included = re.search(r"In file included from answer\.c:(\d+)", done.stderr)
        at_en, at_zh = (f" included on line {included[1]}", f"（第 {included[1]} 行包含的）") if included else ("", "")
        en = [f"The compiler stopped in a file{at_en} that is not part of your source."]
        zh = [f"编译器停在了一个不属于你的源代码的文件里{at_zh}。"]
    en, zh = dict.fromkeys(en), dict.fromkeys(zh)  # one error often comes twice
    return CError("Your C does not compile.\n" + "\n".join(en), "你的 C 代码无法编译。\n" + "\n".join(zh))


def readable(prototype: str) -> str:
    """A prototype with the standard names of its types."""
    return prototype.replace("__UINT64_TYPE__", "uint64_t").replace("__SIZE_TYPE__", "size_t")


def _clip(text: str, most: int = 160) -> str:
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", " ", text).strip()
    return text if len(text) <= most else text[:most] + "…"


# ---------------------------------------------------------------- looking at the code

ALLOWED_CALLS = ("memcpy", "memset", "memmove")
# What compilers put in by themselves: stack protector, fortified copies, position-independent code.
_RUNTIME = {"__stack_chk_fail", "__stack_chk_guard", "_GLOBAL_OFFSET_TABLE_", "__memcpy_chk", "__memset_chk", "__memmove_chk"}
_SECTION_NAMES = re.compile(
    r"(\.rela?)?\.(text|data|bss|rodata|eh_frame)(\..*)?|\.comment|\.note\.(GNU-stack|gnu\.property)"
    r"|\.symtab|\.strtab|\.shstrtab|\.group"
)
_SECTION_TYPES = {"PROGBITS", "NOBITS", "RELA", "REL", "SYMTAB", "STRTAB", "NOTE", "GROUP", "X86_64_UNWIND"}
_STARTUP = re.compile(r"(\.rela?)?\.(init|fini|preinit|ctors|dtors)")
_SECTION = re.compile(r"^\s*\[\s*\d+\] (?P<name>.*?)\s+(?P<type>[A-Z0-9_+x]+)\s+[0-9a-f]{16} [0-9a-f]+ [0-9a-f]+ [0-9a-f]{2}\s+(?P<flags>[A-Za-z]*)\s")
# x86: syscall, sysenter, int N; Arm: svc, hvc, smc; RISC-V: ecall. The rest reach a hypervisor or a device.
_KERNEL = {"syscall", "sysenter", "sysexit", "sysret", "int", "int1", "into", "svc", "hvc", "smc", "ecall", "vmcall", "vmmcall", "in", "out",
           "ins", "insb", "insw", "insl", "outs", "outsb", "outsw", "outsl", "swi"}  # fmt: skip
_KERNEL_BYTES = re.compile(rb"\x0f[\x05\x34]|\xcd\x80")


# How gcc and clang mark it within a function, and how clang does at file level; # // @ begin a comment on x86 and Arm.
_INLINE = re.compile(
    r"^\s*(?:#|//|@) ?(?:APP\b|Start of file scope inline assembly).*?\n"
    r"(.*?)^\s*(?:#|//|@) ?(?:NO_APP\b|End of file scope inline assembly)",
    re.S | re.M,
)


def _check_assembly(assembly: str) -> None:
    """Assembler written by hand may hold instructions, but no directives: they make sections, symbols and raw bytes."""
    for block in _INLINE.findall(assembly):
        for line in re.split(r"[;\n]", block):
            if line.strip().startswith("."):
                raise CError(
                    f"Your inline assembler holds the directive `{_clip(line)}`. An empty barrier is all an answer needs:"
                    ' `__asm__ volatile("" ::: "memory");`',
                    f'内联汇编里出现了伪指令 `{_clip(line)}`。答案只需要空的编译器屏障：`__asm__ volatile("" ::: "memory");`',
                )


def _check_object(code: bytes, source: str, exports, run) -> None:
    if not _elf():
        done = run(["nm", "-u", "answer.o"], {"answer.o": code}, [], 20)
        names = [line.strip().removeprefix("_") for line in done.stdout.splitlines()]
        _refuse_calls([n for n in names if n and n not in ALLOWED_CALLS and n not in _RUNTIME and n != "bzero"])
        return
    commands = ("nm -P answer.o >symbols", "readelf -SW answer.o >sections", "objdump -dw answer.o >code")
    done = run(
        ["/bin/sh", "-c", "export LC_ALL=C; " + " && ".join(commands)], {"answer.o": code}, ["symbols", "sections", "code"], 30,
        file_bytes=_MAX_FILE_BYTES,
    )  # fmt: skip
    if done.returncode:
        raise NoCompiler(f"nm, readelf and objdump (package binutils) are needed to check a C answer: {done.stderr.strip()[:200]}")
    symbols, sections, listing = (done.files[name].decode("utf-8", "replace") for name in ("symbols", "sections", "code"))
    _check_symbols(symbols, source, exports)
    _check_sections(sections)
    _check_instructions(listing)


def _check_symbols(symbols: str, source: str, exports) -> None:
    defined, missing = set(), []
    for line in symbols.splitlines():
        fields = line.split(" ")
        name, kind = fields[0], fields[1] if len(fields) > 1 else "?"
        if kind == "i":
            raise CError(
                f"`{name}` is chosen when the library is loaded (`ifunc`); write an ordinary function.",
                f"`{name}` 在加载时才选定实现（`ifunc`）；请写成普通函数。",
            )
        if kind in ("T", "W"):
            defined.add(name)
        if kind in "TtDdBbRrVWnN":
            if name in ("_init", "_fini"):
                raise _starts_by_itself(f"function `{name}`", f"函数 `{name}`")
        elif name not in ALLOWED_CALLS and name not in _RUNTIME:
            missing.append(name)
    _refuse_calls(missing)
    lacking = [name for name in exports if name not in defined]
    if lacking:
        listed = ", ".join(f"`{name}`" for name in lacking)
        if any(re.search(rf"\bstatic\b[^;{{}}]*\b{name}\s*\(", source) for name in lacking):
            raise CError(
                f"{listed} can't be called from outside your source: take `static` away.", f"外部无法调用 {listed}：请去掉 `static`。"
            )
        raise CError(
            f"`C_SOURCE` does not define {listed}. The names are part of the exercise; check the spelling.",
            f"`C_SOURCE` 没有定义 {listed}。函数名是题目规定的，请检查拼写。",
        )


def _refuse_calls(names) -> None:
    if names:
        listed = ", ".join(f"`{_clip(name, 60)}`" for name in names[:5])
        raise CError(
            f"Your C uses {listed}. An answer may call only {', '.join(ALLOWED_CALLS)}: measuring, printing and memory are Python's part.",
            f"你的 C 代码用到了 {listed}。答案只能调用 {'、'.join(ALLOWED_CALLS)}：计时、打印和分配内存由 Python 部分完成。",
        )


def _starts_by_itself(what_en: str, what_zh: str) -> CError:
    return CError(
        f"Your C has code that would run by itself when it is loaded or unloaded ({what_en}). Take the constructor or destructor out.",
        f"你的 C 代码含有在加载或卸载时自动运行的代码（{what_zh}）。请去掉构造函数或析构函数。",
    )


def _check_sections(table: str) -> None:
    rows = [line for line in table.splitlines() if re.match(r"^\s*\[\s*[1-9]\d*\]", line)]
    for line in rows:
        row = _SECTION.match(line)
        name = row["name"] if row else line.strip()
        if row and _STARTUP.match(name) or row and row["type"] in ("INIT_ARRAY", "FINI_ARRAY", "PREINIT_ARRAY"):
            raise _starts_by_itself(f"section `{_clip(name, 60)}`", f"段 `{_clip(name, 60)}`")
        code = row and "X" in row["flags"]
        if (
            not row or not _SECTION_NAMES.fullmatch(name) or row["type"] not in _SECTION_TYPES
            or code != name.startswith(".text") and row["type"] != "RELA" and row["type"] != "REL" or code and "W" in row["flags"]
        ):  # fmt: skip
            raise CError(
                f"Your C puts something into the section `{_clip(name, 60)}`. Leave sections to the compiler.",
                f"你的 C 代码把内容放进了段 `{_clip(name, 60)}`。请让编译器来决定段。",
            )


def _check_instructions(listing: str) -> None:
    raw, starts, jumps_anywhere = bytearray(), set(), False
    for line in listing.splitlines():
        fields = line.split("\t")
        if len(fields) < 2 or not re.fullmatch(r"\s*[0-9a-f]+:", fields[0]):
            continue
        starts.add(len(raw))
        raw += bytes.fromhex("".join(part for part in fields[1].split() if len(part) == 2))
        text = fields[2] if len(fields) > 2 else ""
        jumps_anywhere |= re.search(r"\b(call|jmp)[a-z]*\s+\*", text) is not None
        words = re.split(r"[\s,]+", text)
        found = next((word for word in words[:3] if word in _KERNEL), None)
        if found:
            raise _enters_kernel(found)
    # Bytes of a system call inside another instruction matter only to code that can jump there.
    if jumps_anywhere and any(hit.start() not in starts for hit in _KERNEL_BYTES.finditer(bytes(raw))):
        raise _enters_kernel("the bytes of one inside another instruction, in code with a computed jump")


def _enters_kernel(found: str) -> CError:
    return CError(
        f"Your C enters the kernel by an instruction of its own (`{found}`). An answer reads and writes memory, nothing else;"
        ' an empty barrier, `__asm__ volatile("" ::: "memory")`, is allowed.',
        f'你的 C 代码用指令直接进入了内核（`{found}`）。答案只应读写内存；允许使用空屏障 `__asm__ volatile("" ::: "memory")`。',
    )


# ---------------------------------------------------------------- with the sanitizers


def sanitized_run(built: Built, driver: str, cases: bytes, run=run_here, timeout_s: float = 30) -> bytes:
    """Runs `driver` (a C file of csrc/) over `cases` with the answer built under the sanitizers; what it wrote.

    The driver reads ``cases.bin``, writes ``results.bin`` and prints the number of the case it is at.
    Raises CError on what a sanitizer finds, on a crash and on a loop that never ends; NoCompiler without sanitizers.
    """
    cc = compiler_path(built.compiler)
    keep = _localise("answer.o", built.exports)
    flags = " ".join(SANITIZER_FLAGS)
    done = run(
        ["/bin/sh", "-c", f'"$0" {flags} -c answer.i -o answer.o && {keep} "$0" {flags} driver.c answer.o -o driver', cc],
        {"answer.i": built.preprocessed, "driver.c": (CSRC / driver).read_bytes()}, ["driver"], 60, file_bytes=64 << 20,
    )  # fmt: skip
    if done.returncode:
        raise NoCompiler(
            f"{built.compiler} can't build with the address and undefined-behaviour sanitizers here"
            f" (Debian: libasan and libubsan come with gcc, libclang-rt with clang): {done.stderr.strip()[:300]}"
        )
    # The address sanitizer reserves terabytes of addresses, so its memory is limited by what is resident.
    options = "detect_leaks=0:hard_rss_limit_mb=1024:allocator_may_return_null=1:symbolize=1"
    ran = run(
        ["/bin/sh", "-c", f'chmod +x driver && ASAN_OPTIONS="{options}" UBSAN_OPTIONS=print_stacktrace=0 exec ./driver'],
        {"driver": done.files["driver"], "cases.bin": cases}, ["results.bin"], timeout_s, memory_bytes=1 << 46,
    )  # fmt: skip
    if ran.returncode or "results.bin" not in ran.files:
        raise _sanitizer_error(built.source, ran)
    return ran.files["results.bin"]


_ACCESS = {"READ": ("reads", "读取"), "WRITE": ("writes", "写入")}


def _sanitizer_error(source: str, ran: Finished) -> CError:
    """One finding in plain words; only the student's own lines are quoted."""

    def place(number):
        lines = source.splitlines()
        if number is None or not 1 <= int(number) <= len(lines):
            return "Your C", "你的 C 代码"
        quoted = _clip(lines[int(number) - 1])
        return f"Line {number}, `{quoted}`,", f"第 {number} 行 `{quoted}` "

    if ran.returncode == -9:
        return CError(
            "Your C did not come to an end. Look for a loop whose index wraps around or never reaches its bound.",
            "你的 C 代码一直没有结束。请检查是否有循环的下标发生回绕，或者永远到不了边界。",
        )
    undefined = re.search(r"answer\.c:(\d+):\d+: runtime error: (.*)", ran.stderr)
    address = re.search(r"ERROR: AddressSanitizer: ([\w-]+)", ran.stderr)
    if undefined:
        number, text = undefined[1], _clip(undefined[2])
        en, zh = place(number)
        if "misaligned" in text:
            return CError(
                f"{en} reads or writes a word through a pointer that is not aligned for its type. C leaves that undefined, even where"
                " the processor can do it. Copy the 8 bytes with memcpy: it compiles to the same single instruction.",
                f"{zh}通过未对齐的指针读写了一个字。即使处理器做得到，C 语言也没有定义这种行为。请用 memcpy 复制这 8 个字节：它会编译成同样的一条指令。",
            )
        return CError(
            f"{en} does something that C leaves undefined: {text}.", f"{zh}做了 C 语言没有定义的事：{text}。"
        )
    if address:
        access = re.search(r"^(READ|WRITE) of size (\d+)", ran.stderr, re.M)
        frame = re.search(r"#\d+ 0x[0-9a-f]+ in \S+ (?:\S*/)?answer\.c:(\d+)", ran.stderr)
        en, zh = place(frame and frame[1])
        if access and address[1] != "stack-overflow":
            verb_en, verb_zh = _ACCESS[access[1]]
            return CError(
                f"{en} {verb_en} {access[2]} bytes outside its buffer ({address[1]}). Check the last index, and the case of no access at all.",
                f"{zh}在缓冲区之外{verb_zh}了 {access[2]} 字节（{address[1]}）。请检查最后一个下标，以及一次都不访问的情况。",
            )
        return CError(f"{en} uses memory that is not its own ({address[1]}).", f"{zh}使用了不属于它的内存（{address[1]}）。")
    return CError(
        f"Your C crashed under the sanitizers (exit status {ran.returncode}).", f"你的 C 代码在检查工具下崩溃了（退出码 {ran.returncode}）。"
    )


# ---------------------------------------------------------------- calling


def load(shared: bytes) -> ctypes.CDLL:
    """The shared library in `shared`, loaded into this process from a file that is gone again."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(shared)
        file.flush()
        return ctypes.CDLL(file.name)


def functions(slug: str, source: str):
    """The C functions of exercise `slug` from your `source`, ready to be called with NumPy arrays.

    Compiled and run on this machine. Raises CError where the source is at fault, NoCompiler where there is no compiler.
    """
    exercise = importlib.import_module(f"perflab.exercises.{slug.replace('-', '_')}")
    return exercise.bind(load(build(source, exercise.PROTOTYPES).shared))
