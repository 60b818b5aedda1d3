"""SQL Server 2016 and newer, Azure SQL Database and Managed Instance, through pyodbc."""

from console.engines.mssql.product import PRODUCT, SQLServer

__all__ = ["PRODUCT", "SQLServer"]
