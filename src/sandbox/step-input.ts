/**
 * What a step gets: its working directory, and then its exact environment and arguments as they are for /usr/bin/env, as
 * one sequence of NUL-terminated strings. systemd cannot carry it: D-Bus strings must be UTF-8, `$` in arguments is expanded,
 * any user may read a unit's properties, and `Environment=` also reaches the hooks of the unit that run as
 * root. So it travels in a file that only the execution uid and root can read, and systemd sees a constant.
 */
import { XceError } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import { FIXED_VARIABLES, type FixedVariable, isFixedVariable } from '../base/variables.ts';
import type { SandboxSpec, StepSpec } from './backend.ts';
import { userName } from './names.ts';
import { HOME_DIRECTORY, LOGIN_SHELL } from './user-record.ts';

/** One string of argv or environment, its NUL included: MAX_ARG_STRLEN of execve(2). */
const STRING_BYTES_MAX = 131_072;
/** execve(2) allows a quarter of the stack limit (8 MiB by default) for strings and pointers; 64 KiB are left
 * for the kernel's own. */
const EXEC_BYTES_MAX = (2 << 20) - (64 << 10);
const POINTER_BYTES = 8;
/** A longer list of nodes is for the caller to ask for; it would take the room of the arguments. */
const NODES_BYTES_MAX = 64 << 10;

/** Undefined: not there for this sandbox. */
const fixedEnvironment = (spec: SandboxSpec): Readonly<Record<FixedVariable, string | undefined>> => {
  const name = userName(spec);
  const nodes = spec.nodes.join(',');
  return {
    HOME: HOME_DIRECTORY,
    TMPDIR: '/tmp',
    USER: name,
    LOGNAME: name,
    SHELL: LOGIN_SHELL,
    XCE_JOB: spec.job,
    XCE_ATTEMPT: String(spec.attempt),
    XCE_LEASE: String(spec.lease),
    XCE_NODE: spec.node,
    XCE_NODES: nodes.length < NODES_BYTES_MAX ? nodes : undefined,
    XCE_UID: String(spec.uid),
  };
};

/** What the site gives to steps, and any of them may set otherwise. */
export type SiteEnvironment = {
  /** Where commands without a slash are looked up, inside the sandbox and by the execution uid. */
  readonly path: string;
  /** The [environment NAME] that the job asked for. */
  readonly variables: readonly { readonly name: string; readonly value: string }[];
};

const NUL = 0;
const EQUALS = 0x3d;

const refuse = (message: string): never => {
  throw new XceError('usage', message);
};

const checkString = (what: string, bytes: Buffer): void => {
  if (bytes.includes(NUL)) refuse(`${what} contains a NUL byte`);
  if (bytes.length >= STRING_BYTES_MAX) {
    throw new XceError(
      'too-large',
      `${what} is ${bytes.length} bytes long; the kernel takes ${STRING_BYTES_MAX - 1}`,
    );
  }
};

/** Name of a NAME=value variable. The bytes are latin1 text, so that no two names fall together. */
const nameOf = (variable: Buffer): string => {
  const at = variable.indexOf(EQUALS);
  if (at < 1) refuse(`environment: ${escapeBytes(variable.subarray(0, 64))} is not NAME=value`);
  return variable.toString('latin1', 0, at);
};

/**
 * The working directory and the arguments of /usr/bin/env for one step, each followed by NUL. `home` is where a step
 * starts that asks for no directory. Throws XceError 'usage' for input that cannot be passed as it is, 'too-large' for more
 * than execve(2) takes.
 */
export const encodeStepInput = (
  spec: SandboxSpec,
  step: StepSpec,
  { home, site }: { readonly home: string; readonly site: SiteEnvironment },
): Buffer => {
  const command = step.argv[0];
  if (command === undefined || command.length === 0) throw new XceError('usage', 'the command is empty');
  // env(1) would take it for a variable and run the next argument instead.
  if (command.includes(EQUALS)) {
    refuse(`the name of a command cannot contain "=": ${escapeBytes(command.subarray(0, 64))}`);
  }
  const fixed = fixedEnvironment(spec);
  const environment = new Map<string, Buffer>();
  const set = (name: string, value: string): void => {
    environment.set(name, Buffer.from(`${name}=${value}`));
  };
  for (const name of FIXED_VARIABLES) {
    const value = fixed[name];
    if (value !== undefined) set(name, value);
  }
  set('PATH', site.path);
  set('LANG', 'C.UTF-8');
  for (const { name, value } of site.variables) set(name, value);
  const names = new Set<string>();
  for (const variable of step.environment) {
    const name = nameOf(variable);
    if (isFixedVariable(name)) refuse(`environment: ${name} is set by the sandbox`);
    if (names.has(name)) refuse(`environment: ${escapeBytes(Buffer.from(name, 'latin1'))} is given twice`);
    names.add(name);
    environment.set(name, variable);
  }
  const directory = step.directory ?? Buffer.from(home);
  if (directory.length > LIMITS.pathBytesMax) {
    throw new XceError('too-large', `the working directory is ${directory.length} bytes long`);
  }
  if (directory[0] !== 0x2f) refuse('the working directory must be an absolute path');
  checkString('the working directory', directory);
  for (const variable of environment.values()) {
    checkString(`variable ${escapeBytes(variable.subarray(0, 32))}`, variable);
  }
  step.argv.forEach((argument, index) => {
    checkString(`argument ${index}`, argument);
  });
  const strings = [...environment.values(), ...step.argv];
  const bytes = strings.reduce((sum, text) => sum + text.length + 1 + POINTER_BYTES, 0);
  if (bytes > EXEC_BYTES_MAX) {
    throw new XceError(
      'too-large',
      `arguments and environment take ${bytes} bytes; the kernel takes ${EXEC_BYTES_MAX}`,
    );
  }
  const parts = [directory, Buffer.from('--ignore-environment'), Buffer.from('--'), ...strings];
  return Buffer.concat(parts.flatMap((part) => [part, Buffer.alloc(1)]));
};
