"""IOBinding: arrays and addresses bound to a session's inputs and outputs, for many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep.api.arrays import as_given, at_address, to_array
from q7x2_ep.api.device import OrtDevice, require_cpu
from q7x2_ep.api.value import Device, OrtValue, OrtValueVector, code_of
from q7x2_ep.errors import BindingError


class SessionIOBinding:
    """What IOBinding holds. inputs: what to feed; outputs: in order, arrays to write to, or None
    where the session makes them; made: the outputs of the last run, until `results` are asked for.
    """

    def __init__(self, session: Any):
        self.session = session
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Optional[np.ndarray]] = {}
        self.made: Sequence[Any] = ()
        self._results = OrtValueVector()
        self._wanted: Optional[tuple[list[str], Sequence[Optional[np.ndarray]], bool]] = None

    def wanted(self) -> tuple[list[str], Sequence[Optional[np.ndarray]], bool]:
        """The names of the outputs; the arrays to write them to, none where the session makes all;
        and whether these are the model's outputs.
        """
        if self._wanted is None:
            names, arrays = list(self.outputs), list(self.outputs.values())
            into = arrays if any(array is not None for array in arrays) else ()
            self._wanted = names, into, names == self.session._session.output_names
        return self._wanted

    @property
    def results(self) -> OrtValueVector:
        """The outputs of the last run; before one, and where other outputs were bound since, what
        is bound: the arrays, or nothing where the session makes them.
        """
        if self.made:
            self._results = OrtValueVector(map(OrtValue._of, self.made))
            self.made = ()
        return self._results

    def bind_input(self, name: str, value: Any, *buffer: Any) -> None:
        """bind_input(name, array), or (name, device, element type, shape, address).

        Raises: BindingError for an unknown name or another device than the CPU.
        """
        codes = self.session._codes
        if name not in codes:
            raise BindingError(
                f"Failed to find NodeArg with name: {name} in the def list: the model's inputs are "
                f"{list(codes)}"
            )
        if not buffer:
            self.inputs[name] = to_array(name, value, codes[name])
            return
        element_type, shape, address = buffer
        require_cpu(value, f"input {name!r}")
        self.inputs[name] = at_address(address, shape, code_of(element_type))

    def bind_output(self, name: str, device: Device, *buffer: Any) -> None:
        """bind_output(name, device), or (name, device, element type, shape, address).

        Raises: BindingError for another device than the CPU.
        """
        require_cpu(device, f"output {name!r}")
        if buffer:
            element_type, shape, address = buffer
            self._bind(name, at_address(address, shape, code_of(element_type)))
        else:
            self._bind(name, None)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_input(name, _ort_value(name, ortvalue))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._bind(name, _ort_value(name, ortvalue)._array())

    def _bind(self, name: str, array: Optional[np.ndarray]) -> None:
        results, value = self.results, OrtValue._of(array)
        if name in self.outputs:
            results[list(self.outputs).index(name)] = value
        else:
            results.append(value)
        self.outputs[name] = array
        self._wanted = None

    def get_outputs(self) -> OrtValueVector:
        return self.results

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays that no later run changes."""
        bound = list(self.outputs.values())
        return [
            as_given(
                result._data if i >= len(bound) or bound[i] is None else np.array(result._data)
            )
            for i, result in enumerate(self.results)
        ]

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.made, self._results = (), OrtValueVector()
        self._wanted = None

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: memory of the CPU is always up to date."""

    synchronize_outputs = synchronize_inputs


class IOBinding:
    """Binds arrays to the inputs and outputs of a session. What is bound by address is read and
    written in place, and the caller keeps it alive.
    """

    def __init__(self, session: Any):
        self._session = session
        self._iobinding = SessionIOBinding(session)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Feed an array, which is read at each run."""
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Feed what lies at an address. element_type: a numpy dtype, or a code of
        onnx.TensorProto.
        """
        device = OrtDevice.make(device_type, device_id)
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Feed an OrtValue."""
        self._iobinding.bind_ortvalue_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Optional[Sequence[int]] = None,
        buffer_ptr: Optional[int] = None,
    ) -> None:
        """Fetch an output: written to an address, or to new memory without one.

        Raises: ValueError for an address without an element type and a shape.
        """
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError(
                f"[output {name!r}] `element_type` and `shape` are to be provided if pre-allocated "
                "memory is provided"
            )
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output into an OrtValue at each run."""
        self._iobinding.bind_ortvalue_output(name, ortvalue)

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order of their binding; before it what is bound, and
        for what is not there yet OrtValues without a value.
        """
        return list(self._iobinding.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The outputs of the last run."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays that no later run changes."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Forget what is fed."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Forget what is fetched."""
        self._iobinding.clear_binding_outputs()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""


def _ort_value(name: str, value: Any) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise BindingError(f"[{name!r}] expected an OrtValue, given {type(value).__name__}")
    return value
