/** As much of JSON Schema as the schemas of this repository use; any other keyword is an error. */
type Schema = { readonly [keyword: string]: unknown };

const KNOWN = [
  '$schema',
  'title',
  'oneOf',
  'type',
  'properties',
  'required',
  'additionalProperties',
  'const',
  'enum',
  'items',
];

const typeOf = (value: unknown): string => {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
};

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [value]);

/** What a value breaks of a schema, each with its place; nothing when it fits. */
export const faultsOf = (schema: Schema, value: unknown, at = '$'): readonly string[] => {
  const unknown = Object.keys(schema).filter((keyword) => !KNOWN.includes(keyword));
  if (unknown.length > 0) throw new Error(`the schema has ${unknown.join(', ')}, which nobody checks`);
  const { oneOf, type, properties = {}, required = [], additionalProperties, items } = schema;
  const faults: string[] = [];
  if (Array.isArray(oneOf)) {
    const fits = oneOf.filter((choice) => faultsOf(choice as Schema, value, at).length === 0);
    if (fits.length !== 1) faults.push(`${at} fits ${fits.length} of the choices`);
  }
  if (type !== undefined && !listOf(type).includes(typeOf(value))) faults.push(`${at} is no ${String(type)}`);
  if ('const' in schema && schema['const'] !== value) faults.push(`${at} is not ${String(schema['const'])}`);
  if (Array.isArray(schema['enum']) && !schema['enum'].includes(value))
    faults.push(`${at} is none of the enum`);
  if (Array.isArray(value) && items !== undefined) {
    faults.push(...value.flatMap((item, index) => faultsOf(items as Schema, item, `${at}[${index}]`)));
  }
  if (typeOf(value) === 'object') {
    const object = value as Readonly<Record<string, unknown>>;
    const named = properties as Readonly<Record<string, Schema>>;
    for (const name of required as readonly string[])
      if (!(name in object)) faults.push(`${at}.${name} is missing`);
    for (const [name, member] of Object.entries(object)) {
      const own = named[name];
      if (own !== undefined) faults.push(...faultsOf(own, member, `${at}.${name}`));
      else if (additionalProperties === false) faults.push(`${at}.${name} is not in the schema`);
    }
  }
  return faults;
};
