"""What is wrong with a YAML file, in one line with its name and the place."""

import yaml


def yaml_fault(name: str, error: yaml.YAMLError) -> str:
    """Such as "keys.yaml:3: is no YAML: did not find expected '-' indicator"."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        words = error.problem or error.context or "it cannot be read"
        if words.startswith("but "):  # it ends what the context begins
            words = f"{error.context}, {words}"
        return f"{name}:{mark.line + 1 if mark else 1}: is no YAML: {words}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{name}: is no YAML: {error.reason}, at character {error.position + 1}"
    return f"{name}: is no YAML: {' '.join(str(error).split())}"


def wrong_tag(node: yaml.Node) -> yaml.constructor.ConstructorError:
    """For a value that is not of its tag, such as `!!int one`."""
    words = f"{str(node.value)[:60]!r} is no {node.tag.rpartition(':')[2]}; quotes make it text"
    return yaml.constructor.ConstructorError(None, None, words, node.start_mark)
