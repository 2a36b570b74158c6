"""The devices of this machine, and the check of a device that a user names."""

import torch

Device = torch.device | str | int


def devices_here() -> list[str]:
    """Return the names of the devices on which torch can compute here: "cpu", then "cuda:0",
    "cuda:1", ...
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        return ["cpu"]
    return [
        "cpu",
        *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())),
    ]


def check_device(given: Device) -> torch.device:
    """Return the device of this name; raise a ValueError with the devices that exist unless torch
    can compute there.
    """
    known = devices_here()
    kinds = {name.partition(":")[0] for name in known}
    # Compare names before torch parses one: torch accepts names of hardware that it cannot use,
    # some with a warning.
    name = known[-1].partition(":")[0] + f":{given}" if isinstance(given, int) else str(given)
    if name in kinds or name in known or name == "cpu:0":
        return torch.device(name)
    verb = "is" if len(known) == 1 else "are"
    raise ValueError(f'there is no device "{given}" here; there {verb} {", ".join(known)}')
