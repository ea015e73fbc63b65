"""Functions of the user's files run with a call at each statement that can carry a constraint.

A statement that binds names (``x = e``, ``q, k = e``, ``self.x = e``) or returns values
(``return e``, ``return e, f``) hands each of them to a ``visit`` function, and goes on with what
that returns: as if another statement were written after it. The source's tree is changed and
compiled again, and the new code is put into all functions of the process that have the old one,
among them methods, closures and what decorators wrap. Lines and columns stay.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import gc
import hashlib
import itertools
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import syntax

_PLACEHOLDER = "toast_lab visits site "
_FUTURE = sum(
    getattr(__future__, name).compiler_flag
    for name in __future__.all_feature_names
    if name not in ("nested_scopes", "generators")  # whose flags mean something else today
)


class Statement(NamedTuple):
    """A name that a statement binds, or what it returns."""

    file: str
    line: int  #: first line of the statement, from 1
    end_line: int
    name: str  #: what it binds, as written; empty: it returns the value
    function: str  #: qualified name
    text: str  #: the first line, without indentation
    element: int = -1  #: of the tuple that it returns; -1: it returns one value


#: called with (value, statement); what it returns is bound or returned in place of the value
Visit = Callable[[Any, Statement], Any]


class SourceText(NamedTuple):
    """A file, its tree as it is and as compiled code."""

    file: str
    text: str

    @property
    def digest(self) -> str:
        """Hex digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def source_of_file(file: str) -> SourceText | None:
    """The source that Python knows for a file or a notebook's cell; None if it knows none."""
    text = "".join(linecache.getlines(file))
    return SourceText(file, text) if text else None


@contextlib.contextmanager
def visited(
    files: Collection[str],
    visit: Visit,
    only: Collection[Statement] | None = None,
    *,
    calls: bool = False,
) -> Iterator[list[str]]:
    """Within the block, functions of ``files`` call ``visit`` in this thread.

    Only for the statements ``only`` if given. With ``calls`` it is called with what is called, for
    each call in the files, and what it returns is called instead. A block for calls may stand in
    one for statements, or the other way round. Gives the files that cannot be visited, because
    their source is unknown or has changed since they were imported. All trace caches of JAX are
    cleared before and after, as the same function has other traces within.
    """
    import jax

    with _LOCK:
        wanted = _Wanted(frozenset(files), None if only is None else frozenset(only), calls)
        around = _VISITS.wanted
        swaps, missing = _swaps(files, [*around, wanted])
        slot = "visit_call" if calls else "visit_value"
        visit_around = getattr(_VISITS, slot)
        jax.clear_caches()
        try:
            for swap in swaps:
                swap.function.__code__ = swap.new
                _ORIGINALS.setdefault(swap.function, swap.original)
            _VISITS.wanted = [*around, wanted]
            setattr(_VISITS, slot, visit)
            yield missing
        finally:
            _VISITS.wanted = around
            setattr(_VISITS, slot, visit_around)
            for swap in swaps:
                swap.function.__code__ = swap.old
                if swap.old is swap.original:
                    del _ORIGINALS[swap.function]
            jax.clear_caches()


@contextlib.contextmanager
def replaced(texts: Mapping[str, str], names: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, functions of files run as other texts of these files say, in all threads.

    Args:
        texts: by file; they define the same functions, in the same order.
        names: for functions whose modules lack them, which the texts may import.

    Raises:
        SyntaxError, ValueError: a text is no Python, or its functions are others.
    """
    import jax

    with _LOCK:
        swaps: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = []
        added: list[tuple[dict[str, Any], str]] = []
        for function in _functions(texts):
            file, flags = function.__code__.co_filename, function.__code__.co_flags & _FUTURE
            source = source_of_file(file)
            if source is not None:
                old, new = (
                    compile(text, file, "exec", flags, dont_inherit=True)
                    for text in (source.text, texts[file])
                )
                code = dict(_pairs(old, new)).get(function.__code__)
                if code is not None:
                    swaps.append((function, function.__code__, code))
        try:
            for function, _, code in swaps:
                function.__code__ = code
                for name in names.keys() - function.__globals__.keys():
                    function.__globals__[name] = names[name]
                    added.append((function.__globals__, name))
            jax.clear_caches()
            yield
        finally:
            for function, code, _ in swaps:
                function.__code__ = code
            for namespace, name in added:
                del namespace[name]
            jax.clear_caches()


class _Wanted(NamedTuple):
    """What a block wants to be visited."""

    files: frozenset[str]
    only: frozenset[Statement] | None
    calls: bool


class _Visits(threading.local):
    """The blocks that a thread is in, and what they call."""

    def __init__(self) -> None:
        self.wanted: list[_Wanted] = []
        self.visit_value: Visit | None = None
        self.visit_call: Visit | None = None


class _Swap(NamedTuple):
    """A function that gets other code for a while."""

    function: Any  #: a FunctionType, which type checkers take for a method here
    original: types.CodeType  #: outside all blocks
    old: types.CodeType  #: outside this block
    new: types.CodeType


_LOCK = threading.RLock()
_VISITS = _Visits()
#: code outside all blocks of the functions that have other code now
_ORIGINALS: dict[types.FunctionType, types.CodeType] = {}


class _Visitor:
    """Stands in code for one statement or call. Other threads run the same code, unvisited."""

    def __init__(self, statement: Statement, *, calls: bool) -> None:
        self.statement, self.calls = statement, calls

    def __call__(self, value: Any) -> Any:
        visit = _VISITS.visit_call if self.calls else _VISITS.visit_value
        return value if visit is None else visit(value, self.statement)


def _swaps(files: Collection[str], wanted: Sequence[_Wanted]) -> tuple[list[_Swap], list[str]]:
    """The functions of these files that a block changes; files left out."""
    functions: dict[str, list[types.FunctionType]] = {file: [] for file in files}
    for function in _functions(files):
        functions[function.__code__.co_filename].append(function)
    swaps: list[_Swap] = []
    missing = []
    for file, of_file in functions.items():
        originals = [_ORIGINALS.get(function, function.__code__) for function in of_file]
        flags = originals[0].co_flags & _FUTURE if originals else 0
        codes = _codes(file, [want for want in wanted if file in want.files], flags)
        in_file = [
            _Swap(function, original, function.__code__, codes[original])
            for function, original in zip(of_file, originals, strict=True)
            if original in codes
        ]
        swaps += in_file
        if not in_file:
            missing.append(file)
    return swaps, missing


def _functions(files: Collection[str]) -> list[types.FunctionType]:
    """All functions of these files.

    The collector tells of all objects but those that ``gc.freeze`` took from it, of which most
    hang on their module. Looking for these takes seconds.
    """
    if not gc.get_freeze_count():
        return [item for item in gc.get_objects() if _is_of(item, files)]
    names = {
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) in frozenset(files)
    }
    pending: list[Any] = [vars(sys.modules[name]) for name in names]
    functions: dict[int, types.FunctionType] = {}
    seen = set(map(id, pending))
    for item in itertools.chain(gc.get_objects(), _hanging_on(pending, seen, names)):
        if _is_of(item, files):
            functions[id(item)] = item
    return list(functions.values())


def _is_of(item: Any, files: Collection[str]) -> bool:
    """Is this a function of one of the files?"""
    return type(item) is types.FunctionType and item.__code__.co_filename in files


def _hanging_on(pending: list[Any], seen: set[int], names: Collection[str]) -> Iterator[Any]:
    """The objects that are referred to by ``pending``, within the modules called ``names``."""
    while pending:
        for item in gc.get_referents(pending.pop()):
            if id(item) in seen or isinstance(item, types.ModuleType):
                continue
            seen.add(id(item))
            yield item
            owner = getattr(item, "__module__", None) if isinstance(item, _OWNED) else None
            is_other_namespace = type(item) is dict and "__builtins__" in item
            if not is_other_namespace and (owner is None or owner in names):
                pending.append(item)


_OWNED = types.FunctionType | type


def _codes(
    file: str, wanted: Sequence[_Wanted], flags: int
) -> dict[types.CodeType, types.CodeType]:
    """New code of each function of a file, by the code that the unchanged source gives.

    ``flags`` are those of the ``__future__`` under which it was compiled.
    """
    source = source_of_file(file)
    if source is None:
        return {}
    try:
        tree, changed = syntax.parse(source.text), syntax.parse(source.text)
    except (SyntaxError, ValueError):
        return {}
    visitors: list[_Visitor] = []
    # Calls first: those of visitors, which the other marking writes, are none of the user's
    for want in sorted(wanted, key=lambda want: not want.calls):
        marking = (_CallMarking if want.calls else _Marking)(source, want.only, len(visitors))
        marking.visit(changed)
        visitors += [_Visitor(statement, calls=want.calls) for statement in marking.statements]
    ast.fix_missing_locations(changed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not the user who calls a text
        old = compile(tree, file, "exec", flags, dont_inherit=True)
        new = compile(changed, file, "exec", flags, dont_inherit=True)
    return {
        before: _with_visitors(after, visitors)
        for before, after in _pairs(old, new)
        if before.co_freevars == after.co_freevars
    }


def _pairs(
    old: types.CodeType, new: types.CodeType
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """The code objects within two versions of one source, in pairs."""
    inner = [
        [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for code in (old, new)
    ]
    for before, after in zip(*inner, strict=True):
        yield before, after
        yield from _pairs(before, after)


def _with_visitors(code: types.CodeType, visitors: Sequence[_Visitor]) -> types.CodeType:
    """Code with a visitor in place of each placeholder."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constant = _with_visitors(constant, visitors)
        elif isinstance(constant, str) and constant.startswith(_PLACEHOLDER):
            constant = visitors[int(constant.removeprefix(_PLACEHOLDER))]
        constants.append(constant)
    return code.replace(co_consts=tuple(constants))


class _Marking(ast.NodeTransformer):
    """Lets statements of functions call visitors."""

    def __init__(
        self, source: SourceText, only: Collection[Statement] | None, first: int = 0
    ) -> None:
        self.source, self.only, self.first = source, only, first  #: number of its first placeholder
        self.lines = source.text.splitlines()
        self.statements: list[Statement] = []
        self.names: list[str] = []  #: of the enclosing functions and classes
        self.bound: list[set[str] | None] = [None]  #: names bound so far; None outside functions

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.scope(node, [node.name], None)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.scope(node, [node.name, "<locals>"], set())

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.scope(node, [node.name, "<locals>"], set())

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def scope(self, node: Any, names: list[str], bound: set[str] | None) -> ast.AST:
        self.names += names
        self.bound.append(bound)
        node.body = [
            replacement for statement in node.body for replacement in _listed(self.visit(statement))
        ]
        self.bound.pop()
        del self.names[-len(names) :]
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self.assigned(node, node.targets[0], alone=len(node.targets) == 1)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return self.assigned(node, node.target) if node.value is not None else node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if self.bound[-1] is None or not isinstance(node.target, ast.Name):
            return node
        name = node.target.id
        self.bound[-1].add(name)
        return [node, *self.again(node, name)]

    def visit_Return(self, node: ast.Return) -> Any:
        bound = self.bound[-1]
        if bound is None or node.value is None or self.is_alias(node.value):
            return node
        if not isinstance(node.value, ast.Tuple):
            node.value = self.call(node.value, self.statement(node, ""))
            return node
        for number, element in returned_elements(node).items():
            if not self.is_alias(element):
                called = self.call(element, self.statement(node, "", number))
                node.value.elts[number] = called
        return node

    def assigned(self, node: Any, target: Any, *, alone: bool = True) -> Any:
        bound = self.bound[-1]
        if bound is None:
            return node
        if isinstance(target, ast.Tuple | ast.List):
            names = [element.id for element in target.elts if isinstance(element, ast.Name)]
            if not alone or len(set(names)) < len(names):
                return node
            bound.update(names)
            return [node, *(statement for name in names for statement in self.again(node, name))]
        name = _written(target)
        if name and not self.is_alias(node.value):
            node.value = self.call(node.value, self.statement(node, name))
        if name:
            bound.add(name)
        return node

    def is_alias(self, value: ast.AST) -> bool:
        """Is it a name that a statement before has bound, where a constraint can stand?"""
        return _written(value) in (self.bound[-1] or ())

    def again(self, node: ast.stmt, name: str) -> list[ast.stmt]:
        """A statement that hands a bound name to its visitor and binds it again."""
        loaded = ast.copy_location(ast.Name(name, ast.Load()), node)
        stored = ast.copy_location(ast.Name(name, ast.Store()), node)
        value = self.call(loaded, self.statement(node, name))
        if value is loaded:
            return []
        return [ast.copy_location(ast.Assign([stored], value), node)]

    def statement(self, node: ast.stmt | ast.expr, name: str, element: int = -1) -> Statement:
        return Statement(
            file=self.source.file,
            line=node.lineno,
            end_line=node.end_lineno or node.lineno,
            name=name,
            function=".".join(self.names[:-1]),
            text=self.lines[node.lineno - 1].strip(),
            element=element,
        )

    def call(self, value: ast.expr, statement: Statement) -> ast.expr:
        if self.only is not None and statement not in self.only:
            return value
        self.statements.append(statement)
        number = self.first + len(self.statements) - 1
        placeholder = ast.Constant(f"{_PLACEHOLDER}{number}")
        call = ast.Call(ast.copy_location(placeholder, value), [value], [])
        return ast.copy_location(call, value)


class _CallMarking(_Marking):
    """Lets what functions call be replaced by visitors."""

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self.generic_visit(node)

    def assigned(self, node: Any, target: Any, *, alone: bool = True) -> Any:
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> Any:
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = _written(node.func)
        # ``super()`` and the like look at the function that calls them
        if self.bound[-1] is not None and name and not hasattr(builtins, name):
            node.func = self.call(node.func, self.statement(node, name))
        return node


def returned_elements(node: ast.Return) -> dict[int, ast.expr]:
    """The elements of the tuple that a statement returns, by number; none if it is no tuple."""
    if not isinstance(node.value, ast.Tuple):
        return {}
    elements = node.value.elts
    starred = (n for n, element in enumerate(elements) if isinstance(element, ast.Starred))
    return dict(enumerate(elements[: next(starred, len(elements))]))


def _listed(nodes: Any) -> list[Any]:
    return nodes if isinstance(nodes, list) else [nodes]


def _written(target: ast.AST) -> str:
    """A name or an attribute of names, as written; empty for all others."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and (owner := _written(target.value)):
        return f"{owner}.{target.attr}"
    return ""
