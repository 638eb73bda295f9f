"""Operations on existing jobs: find, explain, describe, cancel, retry. Prints nothing."""
