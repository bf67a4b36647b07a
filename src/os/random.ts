/** Bytes that nobody can guess. The module is loaded when it is needed first: most short programs never do. */
export const randomBytes = (count: number): Uint8Array =>
  process.getBuiltinModule('node:crypto').randomBytes(count);
