"""The conventions of scikit-learn: options in the constructor, results in attributes that end in an underscore.

``sklearn.base.clone`` works on these classes, and ``ParameterGrid`` with ``set_params`` searches their options.
``GridSearchCV`` does not: it would split the documents, and here queries are split. scikit-learn itself is not needed.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

from nudgevec.errors import NotFittedError, OptionError


class Estimator:
    """Base class: options by name, and results that exist only after ``fit``."""

    _results: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that ``fit`` sets."""

    @classmethod
    def _options(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name, as scikit-learn does.

        Parameters
        ----------
        deep : bool
            Without effect, because no option has options of its own.

        Returns
        -------
        dict of str to object
        """
        return {name: getattr(self, name) for name in self._options()}

    def set_params(self, **options: Any) -> Self:
        """Set options by name, as scikit-learn does.

        Parameters
        ----------
        **options
            New values of options. They take effect in the next ``fit``.

        Returns
        -------
        self

        Raises
        ------
        OptionError
            If there is no option of that name. Values are checked by ``fit``.
        """
        for name, value in options.items():
            if name not in self._options():
                raise OptionError(f"{type(self).__name__} has no option {name!r}; it has {', '.join(self._options())}")
            setattr(self, name, value)
        return self

    def _forget_results(self) -> None:
        """Remove the results of an earlier ``fit``."""
        for name in self._results:
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in self._results:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
