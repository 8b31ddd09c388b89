"""What Kubernetes makes of a container's command before a shell sees it."""

import re


def expanded(text, environment):
    """`text` with `$$` as `$`, and with the value of each variable of the container for `$(NAME)`."""

    def of(found):
        return "$" if found[1] is None else environment.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", of, text)
