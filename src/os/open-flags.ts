/** open(2) O_PATH: Node 20 has no name for it. */
export const O_PATH = 0o10000000;
