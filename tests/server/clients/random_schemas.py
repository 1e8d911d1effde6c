"""Random JSON schemas of the keywords that the server takes. Most have answers of a bounded length, so that a
grammar ends them within a few hundred tokens at any temperature."""

NAMES = ["name", "age", "größe", "a b", "x\"y", "list", "next"]
FORMATS = ["date", "date-time", "time", "uuid", "ipv4", "email"]
PATTERNS = ["^[a-z]{2,4}$", "^(ab|c){1,5}$", "^\\d{3}-[xy]$", "^.{1,3}$"]
VALUES = ["a", "b\"c", "d\\e", "ü", 5, -1.5, True, None, [1, "x"], {"k": 0}]
ENDLESS = 0.05  # share of the strings, numbers, arrays and objects without an upper bound


def random_schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    if depth < 3:
        kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf"] * 2 + ["types"]
    kind = rng.choice(kinds) if depth else rng.choice(["object", "object", "array"])
    if kind in ("string", "object", "array"):
        return {"string": string, "object": object_schema, "array": array}[kind](rng, depth)
    if kind in ("integer", "number"):
        low = rng.randint(-50, 50)
        if rng.random() < ENDLESS:
            return {"type": kind} | rng.choice([{}, {"minimum": low}, {"maximum": low}, {"exclusiveMinimum": low}])
        return {"type": kind, rng.choice(["minimum", "exclusiveMinimum"]): low, "maximum": low + rng.randint(1, 400)}
    if kind == "enum":
        return {"enum": rng.sample(VALUES, 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 17, False, None, ["y"]])}
    if kind == "format":
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    return {"type": rng.sample(["string", "integer", "null", "boolean"], 2)} if rng.random() < ENDLESS else {
        "type": ["null", "boolean"]}


def string(rng, _):
    low = rng.randint(0, 3)
    least = rng.choice([{}, {"minLength": low}])
    return {"type": "string"} | least | ({} if rng.random() < ENDLESS else {"maxLength": low + rng.randint(0, rng.choice([6, 200]))})


def array(rng, depth):
    low = rng.randint(0, 2)
    schema = {"type": "array", "items": random_schema(rng, depth + 1)}
    return schema | ({} if rng.random() < ENDLESS else {"minItems": low, "maxItems": low + rng.randint(0, 2)})


def object_schema(rng, depth):
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
              "required": [name for name in names if rng.random() < 0.6]}
    # The server refuses further properties beside a name that JSON escapes.
    if rng.random() >= ENDLESS or "x\"y" in names:
        return schema | {"additionalProperties": False}
    if rng.random() < 0.3:
        return {"type": "object", "required": names[:2], "additionalProperties": {"type": "integer"}}
    return schema | rng.choice([{}, {"additionalProperties": {"type": "null"}}])
