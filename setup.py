"""Builds the compiled core: every src/X.pyx becomes the module cellium_fast._X."""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
MODULES = sorted(path.stem for path in SOURCE.glob("*.pyx"))
HEADERS = sorted(str(path) for path in SOURCE.rglob("*") if path.suffix in (".pxd", ".h"))

# Names for -fsanitize=, for a build that watches itself: .ci/sanitize.py says how to run one.
SANITIZE = os.environ.get("CELLIUM_SANITIZE", "")

if platform.system() == "Windows":
    COMPILE = ["/O2", "/fp:precise", "/std:c11"]
    LINK = []
else:
    # No fused multiply-add, which would round differently from machine to machine. That nobody
    # looks at floating-point exceptions changes no result, but lets GCC vectorise comparisons.
    COMPILE = ["-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    if SANITIZE:
        LINK = [f"-fsanitize={SANITIZE}"]
        COMPILE += [
            *LINK, "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all",
        ]
    else:
        LINK = []
        COMPILE += ["-O3", "-g0"]

HELP = (
    "cellium-fast needs a C compiler that knows C11 and the Python headers; install them "
    "(Debian or Ubuntu: apt install gcc python3-dev; Fedora: dnf install gcc python3-devel; "
    "macOS: xcode-select --install; Windows: Visual Studio Build Tools 2019 or newer) "
    "and run the installation again."
)


class build_core(build_ext):
    """Compile in parallel; a missing or too old compiler ends in one sentence that helps."""

    def finalize_options(self):
        """Use every core."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def build_extensions(self):
        """Make C from Cython and compile it, once the compiler is known to work."""
        from Cython.Build import cythonize
        from setuptools.errors import CompileError

        try:
            self._check_compiler()
        except (CompileError, OSError):
            sys.exit(f"error: {HELP}")
        made = cythonize(
            self.extensions,
            include_path=[str(SOURCE)],
            build_dir="build/cython",
            compiler_directives={
                "language_level": 3, "boundscheck": False, "wraparound": False,
                "cdivision": True, "initializedcheck": False,
            },
        )
        # In place: setuptools has noted things on the extensions that it was given.
        for extension, of_c in zip(self.extensions, made, strict=True):
            extension.sources = of_c.sources
        super().build_extensions()

    def _check_compiler(self):
        probe = Path(self.build_temp) / "probe.c"
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(
            "#include <Python.h>\n"
            "_Static_assert(sizeof(void *) >= 4, \"C11\");\n"
            "int probe(void) { return 0; }\n"
        )
        self.compiler.compile(
            [str(probe)], output_dir=self.build_temp, include_dirs=self.include_dirs,
            extra_postargs=COMPILE,
        )


EXTENSIONS = [
    Extension(
        f"cellium_fast._{name}",
        [str(SOURCE / f"{name}.pyx")],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        include_dirs=[str(SOURCE)],
        depends=HEADERS,
    )
    for name in MODULES
]

setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": build_core})
